"""What the answers of a model are worth: by the problem, the config and the device that they are for.

`envelope` judges one question; the other files say what it is judged by, and how that is learned from the training data.
"""

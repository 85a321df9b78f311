"""From a question to its answer: requests, the model that answers, selecting, searching, dispatching."""

"""Text for other languages.

Text from files, users and kernels reaches C, C++, CMake, HTML or a terminal only through these functions.
"""

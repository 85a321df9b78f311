"""Text for another language.

What a file, a user or a kernel says reaches C, C++, CMake, HTML or a terminal through these functions alone.
"""

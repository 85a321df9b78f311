"""Text for other languages.

Text from files, users and kernels reaches C, C++, CMake, HTML, Markdown, TOML, a shell command or a terminal only
through these functions.
"""

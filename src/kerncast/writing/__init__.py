"""Text for another language. What a file, a user or a kernel says reaches C, C++ or CMake through these functions alone."""

"""What a user touches: the public functions, the command line, the server."""

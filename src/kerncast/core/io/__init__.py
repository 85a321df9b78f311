"""What goes in and out: files written whole or not at all, locks, foreign files, text quoted for other languages."""

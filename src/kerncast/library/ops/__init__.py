"""Built-in ops, one file each: problem space, work, problem features."""

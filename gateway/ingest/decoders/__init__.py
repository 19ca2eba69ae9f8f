"""The parent's side of decoding: child processes, each with limits of memory and processor time."""

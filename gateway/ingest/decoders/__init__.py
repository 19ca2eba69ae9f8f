"""Pictures are decoded here: in child processes, each within limits of memory and processor time."""

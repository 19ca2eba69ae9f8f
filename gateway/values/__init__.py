"""Values that come from outside as text: how they are read, and how messages about wrong ones are worded."""

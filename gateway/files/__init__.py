"""Files that several processes use, and names of files that come from outside."""

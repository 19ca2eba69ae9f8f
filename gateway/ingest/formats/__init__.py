"""Header readers of the formats that Triton's preprocessor decodes: each `read_…(data)` decodes nothing.

They return an ImageInfo and raise InvalidImage if the header is damaged, TruncatedImage if the file is shorter than its
header announces, and UnsupportedFormat for variants that OpenCV decodes wrong. The bytes may be hostile: each loop is
bounded, and a file of n bytes costs at most O(n) time.
"""

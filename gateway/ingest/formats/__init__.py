"""Header readers of the formats that Triton's preprocessor decodes, each in the module with the format's name.

`read(data)` decodes nothing. It returns a Header, and raises InvalidImage if the header is damaged, TruncatedImage
if the file is shorter than its header announces, and UnsupportedFormat for variants that OpenCV decodes wrong. The
bytes may be hostile: each loop is bounded, and a file of n bytes costs at most O(n) time. It returns None if a decoder
has to read the header. `for_decoders(data)` is what Triton gets instead of a file whose Header is `rewritten`.
"""

"""Header readers of the formats that Triton's preprocessor decodes: each `read_…(data)` decodes nothing.

They return an ImageInfo and raise InvalidImage where the header is damaged, TruncatedImage where the file ends before
its format says it should, and UnsupportedFormat for a variant that OpenCV does not decode right. All of them take
hostile bytes: each loop is bounded, and a file of n bytes costs no more than O(n), mostly far less.
"""

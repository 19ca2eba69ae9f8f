"""Why a result was logged: the values of the column `reasons`."""

SAMPLE = "sample"
"""At random, by the model's share."""
LOW_SCORE, LOW_MARGIN, DISAGREEMENT, ERROR = "score", "margin", "disagreement", "error"
"""By a rule: a low best score, two similar best scores, a shadow version with another class, an error."""

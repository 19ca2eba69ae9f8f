"""A table as a value of `format` of POST /predict. Entry point: csv = "csv_answers:CsvAnswers"."""

import csv
import io

from gateway.hooks import AnswerShape, Plugin


class Csv(AnswerShape):
    """A row for each image: file, top-1 label, score, error code."""

    media_type = "text/csv"
    separator = b""

    def item(self, result):
        best = result.predictions[0] if result.predictions else None
        line = io.StringIO()
        error = result.error.code if result.error else ""
        csv.writer(line).writerow([result.filename, best.label if best else "", best.score if best else "", error])
        return line.getvalue().encode()

    def around(self):
        return b"filename,label,score,error\r\n", b""


class CsvAnswers(Plugin):
    """Adds `format=csv`."""

    def shapes(self):
        return {"csv": Csv()}

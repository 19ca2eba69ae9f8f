"""The options of a run, which its first row records so that `--resume` does not mix rows of different options."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway_client.bulk import BulkError
from gateway_client.bulk.rows import Row

OPTIONS = "options"
"""The member with the run's options, in the first row of JSON lines."""
_SHOWN_CHARACTERS = 100

Options = Mapping[str, Any]
"""By the names of Gateway.classify's parameters; None means the service's default."""


class OptionsDiffer(BulkError):
    """`--resume` has other options than the original run; the message names the first difference."""


class RunOptions:
    """The options of the run that continues the rows of `path`."""

    def __init__(self, path: Path, options: Options) -> None:
        self._path = path
        self._options = {name: value for name, value in options.items() if value is not None}

    def recorded_in(self, row: Row) -> Row:
        """The row with these options, for the first row of a file."""
        return {**row, OPTIONS: self._options}

    def check(self, row: Row) -> None:
        """Raise OptionsDiffer if a row records other options, or if its result shows that it comes from others."""
        before = row.get(OPTIONS)
        if before is not None:
            for name in {**before, **self._options}:
                if before.get(name) != self._options.get(name):
                    raise self._differ(
                        _with_option(name, before.get(name)), _with_option(name, self._options.get(name))
                    )
        if row["error"] is not None:
            return
        for name in ("model", "version"):
            wanted, found = self._options.get(name), row.get(name)
            if None not in (wanted, found) and str(wanted) != found:
                raise self._differ(f"with --{name} {found}", _with_option(name, wanted))
        most, answered = self._options.get("top_k"), len(row.get("predictions") or ())
        if most is not None and "labels" not in self._options and answered > most:
            raise self._differ(f"with --top-k {answered} or more", _with_option("top_k", most))

    def _differ(self, before: str, now: str) -> OptionsDiffer:
        return OptionsDiffer(
            f"the rows in {self._path} are from a run {before}, and this run is {now}: resume with the same options, "
            "or use --overwrite to start again"
        )


def _with_option(name: str, value: object) -> str:
    option = f"--{name.replace('_', '-')[:_SHOWN_CHARACTERS]}"
    if value is None:
        return f"without {option}"
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"with {option} {text[:_SHOWN_CHARACTERS]}"

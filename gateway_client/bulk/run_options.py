"""The options of a run, kept beside its journal so that `--resume` does not mix rows of different options."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway_client.bulk import BulkError
from gateway_client.bulk.rows import Row
from gateway_client.documents import parsed
from gateway_client.files import read_text, whole_file

MAX_OPTIONS_BYTES = 2**20
"""Maximum bytes of the file with a run's options; its longest option is a list of classes."""
_SHOWN_CHARACTERS = 100

Options = Mapping[str, Any]
"""By the names of Gateway.classify's parameters; None means the service's default."""


class OptionsDiffer(BulkError):
    """`--resume` has other options than the original run; the message names the first difference."""


class OptionsUnreadable(BulkError):
    """The file with the options of a run was changed, or was not written by this command."""


class RunOptions:
    """The options of the run whose journal is `part`."""

    def __init__(self, part: Path, options: Options) -> None:
        self._path = part.with_name(f"{part.name}.options")
        self._part = part
        self._options = {name: value for name, value in options.items() if value is not None}

    def keep(self) -> None:
        """Write the options to their file."""
        with whole_file(self._path) as draft:
            draft.write_text(json.dumps(self._options))

    def check(self) -> None:
        """Raise OptionsDiffer if the rows so far come from other options; raises OptionsUnreadable."""
        if (before := self._before()) is not None:
            for name in {**before, **self._options}:
                if before.get(name) != self._options.get(name):
                    raise self._differ(
                        _with_option(name, before.get(name)), _with_option(name, self._options.get(name))
                    )

    def check_row(self, row: Row) -> None:
        """Raise OptionsDiffer if a row shows that it comes from other options."""
        if row["error"] is not None:
            return
        for name in ("model", "version"):
            wanted, found = self._options.get(name), row.get(name)
            if None not in (wanted, found) and str(wanted) != found:
                raise self._differ(f"with --{name} {found}", _with_option(name, wanted))
        most, answered = self._options.get("top_k"), len(row.get("predictions") or ())
        if most is not None and "labels" not in self._options and answered > most:
            raise self._differ(f"with --top-k {answered} or more", _with_option("top_k", most))

    def forget(self) -> None:
        """Delete the file, once the output exists."""
        self._path.unlink(missing_ok=True)

    def _before(self) -> dict[str, Any] | None:
        """The options of the rows so far; None if there is no file, as beside a complete output."""
        try:
            return parsed(read_text(self._path, max_bytes=MAX_OPTIONS_BYTES).encode())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as exc:
            raise OptionsUnreadable(
                f"{self._path} should have the options of the run and cannot be read: {exc}. Use --overwrite to start "
                "again, or remove this file if the rows are from the same options"
            ) from exc

    def _differ(self, before: str, now: str) -> OptionsDiffer:
        return OptionsDiffer(
            f"the rows in {self._part} are from a run {before}, and this run is {now}: resume with the same options, "
            "or use --overwrite to start again"
        )


def _with_option(name: str, value: object) -> str:
    option = f"--{name.replace('_', '-')[:_SHOWN_CHARACTERS]}"
    if value is None:
        return f"without {option}"
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"with {option} {text[:_SHOWN_CHARACTERS]}"

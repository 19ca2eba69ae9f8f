"""The list of transformers' processors in docs/guides/model-sources.md, written anew: python docs/processors.py.

Not one of docs/tables.py, since transformers takes seconds to import. A test fails where the table is out of date.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import transformers
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES

from gateway.errors import UserError
from gateway_models.networks.hub import CONFIG, HUGGING_FACE
from gateway_models.networks.pretrained import check_processor
from gateway_models.repository.preprocessing_sources import from_file
from gateway_models.repository.spec import ModelSpec

PAGE = Path(__file__).parent / "guides" / "model-sources.md"
START, END = "<!-- table: processors -->\n", "\n<!-- end -->"
EQUAL = "served, pixel for pixel"


def results() -> Iterator[tuple[str, str]]:
    """The processor of each image classifier with its defaults, and EQUAL or why `gateway model add` refuses it."""
    names = {
        dict(IMAGE_PROCESSOR_MAPPING_NAMES.get(model) or {}).get("pil")
        for model in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
    }
    for name in sorted(name for name in names if name and name.endswith("Pil")):
        with tempfile.TemporaryDirectory() as folder:
            getattr(transformers, name)().save_pretrained(folder)
            (Path(folder) / CONFIG).write_text("{}")
            try:
                prepared = from_file(Path(folder) / "preprocessor_config.json")
                check_processor(ModelSpec(f"{HUGGING_FACE}{folder}", "", preprocessing=prepared, own_processor=True))
                result = EQUAL
            except UserError as exc:
                reason = str(exc).removeprefix(f"{folder}/preprocessor_config.json: ")
                result = f"refused: {reason.partition(' is not supported')[0].removesuffix(' of the processor')}"
        yield name.removesuffix("ImageProcessorPil"), result


def table(found: dict[str, str]) -> str:
    """Which processors are served, and which are refused, with the reason."""
    equal = ", ".join(name for name, result in found.items() if result == EQUAL)
    refused = [f"{name} ({why.removeprefix('refused: ')})" for name, why in found.items() if why != EQUAL]
    return f"- Served, pixel for pixel: {equal}.\n- Refused: {', '.join(refused)}."


def with_table(page: str, content: str) -> str:
    """The text of a page with its table replaced."""
    before, _, rest = page.partition(START)
    return f"{before}{START}{content}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(), table(dict(results()))))

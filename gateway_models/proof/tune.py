"""`gateway model tune`: measures the runtimes of a network on this machine, and keeps the fastest correct one."""

import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten

from gateway.errors import UserError
from gateway_local import cpu_network
from gateway_local.cpu_network import CpuRuntime
from gateway_models.networks.add import add
from gateway_models.networks.isolation import Report
from gateway_models.networks.originals import network_answers
from gateway_models.proof.dataset import Sample
from gateway_models.proof.evaluate import BATCH, CALLERS, predict_each
from gateway_models.proof.image_files import NotCompared, parted, reader, resize_for
from gateway_models.proof.parity import Parity, compare_served
from gateway_models.proof.serving import serving
from gateway_models.proof.variants import Variant, variants_of
from gateway_models.repository.entry import LABELS, Entry
from gateway_models.repository.spec import Format, Precision, Serving
from gateway_models.repository.summary import Report as Table
from gateway_models.repository.writing import rewrite

REASON_WIDTH = 100
"""The longest reason in the row of a variant that was not measured, in characters."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The results of a variant under load, and the largest difference of a probability from the original's.

    `same_top1` is the share of images with the original's top-1 class. If the variant could not be built or served,
    `reason` is the error and the numbers are 0.
    """

    variant: Variant
    images: int = 0
    seconds: float = 0.0
    difference: float = 0.0
    same_top1: float = 0.0
    reason: str = ""

    @property
    def images_per_second(self) -> float:
        """Throughput."""
        return self.images / self.seconds if self.seconds else 0.0

    def progress_line(self) -> str:
        """A line of progress."""
        return f"{self.variant.described()}: " + (self.reason or f"{self.images_per_second:.1f} images/s")

    def fits(self, tolerance: float) -> bool:
        """Whether its answers are close enough to the original's."""
        return not self.reason and self.difference <= tolerance

    def joined(self, other: "Measured") -> "Measured":
        """Both turns of a variant together, or the failed one."""
        if self.reason or other.reason:
            return self if self.reason else other
        return replace(self, images=self.images + other.images, seconds=self.seconds + other.seconds)


class Tuner:
    """Measures variants of one entry in a temporary repository, with an embedded Triton that is started once.

    A context manager; raises UserError on entry if the original is missing or Triton does not start.
    """

    def __init__(self, entry: Entry, repository: Path, files: Sequence[Path], seconds: float, report: Report) -> None:
        self.entry, self.repository, self.report = entry, repository, report
        self.variants = variants_of(entry)
        read = reader(resize_for(entry))
        self.files = [file for file in files if isinstance(read(file), bytes)]
        if not self.files:
            raise UserError("none of the images can be read, so nothing can be measured")
        self.seconds = seconds
        self.measured: list[Measured] = []
        self._networks: dict[tuple[Format, Precision, CpuRuntime | None], Entry] = {}

    def __enter__(self) -> "Tuner":
        with ExitStack() as stack:
            self._original = network_answers(self.entry.versions[self.entry.in_use])
            self._scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tune-")))
            self._client = stack.enter_context(serving(self._scratch, (), self.report))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def run(self) -> Iterator[Measured]:
        """Measure each variant twice, in the given order and then backwards.

        A machine that becomes slower or faster meanwhile then favours none of them.
        """
        self.report(f"measuring there and back: {'; '.join(each.described() for each in self.variants)}")
        first = {variant: self.measure(variant) for variant in self.variants}
        for variant in reversed(self.variants):
            measured = first[variant]
            if not measured.reason:
                measured = measured.joined(self.measure(variant))
            self.measured.append(measured)
            yield measured

    def best(self, tolerance: float) -> Measured | None:
        """The fastest variant whose answers are within the tolerance."""
        fit = (each for each in self.measured if each.fits(tolerance))
        return max(fit, key=lambda each: each.images_per_second, default=None)

    def keep(self, chosen: Variant) -> Entry:
        """Write a measured variant into the tuned entry; returns the new entry."""
        network = self._networks[_key(chosen)]
        number = self.entry.in_use
        old_file = self.entry.model_file(self.repository, number)
        outcome = network.versions[1].outcome
        if chosen.serving.openvino:
            # OpenVINO was not tried on the made-up images.
            difference = next(each.difference for each in self.measured if each.variant == chosen)
            outcome = replace(outcome, difference=difference)
        # All versions that run this network, each with its post-processing step.
        versions = {
            each: replace(
                version,
                spec=replace(version.spec, format=chosen.format, precision=chosen.precision),
                outcome=outcome,
                drift_reference="",
            )
            if self.entry.network_of(each) == self.entry.network_of(number)
            else version
            for each, version in self.entry.versions.items()
        }
        entry = replace(self.entry, versions=versions).changed(serving=chosen.serving)
        before = (self.entry.format, self.entry.spec.precision, self.entry.versions[number].outcome.cpu_runtime)
        if (chosen.format, chosen.precision, outcome.cpu_runtime) != before:
            made, target = network.model_file(self._scratch, 1), entry.model_file(self.repository, number)
            cpu_network.remove(old_file)
            shutil.copyfile(made, target)
            for name in cpu_network.FILES:
                if made.with_name(name).is_file():
                    shutil.copyfile(made.with_name(name), target.with_name(name))
            if chosen.format is not self.entry.format:
                old_file.unlink()
        rewrite(entry, self.repository)
        return entry

    def measure(self, variant: Variant) -> Measured:
        """A variant's answers and its results under load; without figures if it could not be served."""
        try:
            network = self._network(variant)
            if variant.has_cpu_form and network.versions[1].outcome.cpu_runtime is not CpuRuntime.ONNXRUNTIME:
                _, reason = cpu_network.choice(network.model_file(self._scratch, 1))
                return Measured(variant, reason=reason)
            entry = network.changed(serving=variant.serving)
            rewrite(entry, self._scratch)
            self._client.load(entry.name)  # Triton also loads the ensemble's steps
            try:
                results = compare_served(entry, 1, self._client, self.files, original=self._original)
                parity = Parity(*parted(results))
                _check(parity.refused)
                # The first images warm it up, and show how many are needed.
                least = CALLERS * BATCH
                count = max(least, int(least / self._timed(entry, least) * self.seconds / 2))
                seconds = self._timed(entry, count)
                return Measured(variant, count, seconds, parity.largest, parity.top1_agreement)
            finally:
                self._client.unload(entry.name, entry.classifier, entry.preprocessor)
        except UserError as exc:
            return Measured(variant, reason=str(exc).splitlines()[0])

    def _network(self, variant: Variant) -> Entry:
        key = _key(variant)
        if key not in self._networks:
            version = self.entry.versions[self.entry.in_use]
            # A source that was trusted when it was added still is: the original's digest is unchanged.
            spec = replace(
                version.spec,
                name="-".join(filter(None, key)),
                labels=self.repository / self.entry.classifier / LABELS,
                after=None,
                input=version.outcome.input,
                precision=variant.precision,
                format=variant.format,
                serving=Serving(cpu_runtime=variant.serving.cpu_runtime),
                sha256=None,
                version=None,
            )
            self._networks[key] = add(spec, self._scratch, lambda _: None)
        return self._networks[key]

    def _timed(self, entry: Entry, count: int) -> float:
        """The seconds of `count` images, cycling through the files, as the gateway would send them."""
        samples = [Sample(self.files[number % len(self.files)], frozenset()) for number in range(count)]
        started = time.perf_counter()
        _, refused = parted(predict_each((entry.name,), self._client.address, samples, resize_for(entry)))
        _check(refused)
        return time.perf_counter() - started


def _check(refused: Sequence[NotCompared]) -> None:
    """Raise UserError for an image without an answer."""
    for each in refused:
        raise UserError(f"{each.path}: {each.reason}")


def _key(variant: Variant) -> tuple[Format, Precision, CpuRuntime | None]:
    """Variants with the same key have the same files."""
    return variant.format, variant.precision, variant.serving.cpu_runtime


def report(measured: Sequence[Measured], chosen: Measured | None, tolerance: float) -> None:
    """Print the table of variants, fastest first."""
    rows = []
    for each in sorted(measured, key=lambda each: each.images_per_second, reverse=True):
        if each.reason:
            rows.append((each.variant.described(), *"---", shorten(each.reason, REASON_WIDTH, placeholder=" …")))
            continue
        note = "" if each.fits(tolerance) else "beyond the tolerance"
        figures = f"{each.images_per_second:.1f}", f"{each.difference:.1e}"
        agreed = f"{100 * each.same_top1:.4g} %"
        rows.append((each.variant.described(), *figures, agreed, "chosen" if each == chosen else note))
    Table(("variant", "images/s", "largest |Δp|", "same top-1", ""), rows).print()

"""The settings of the prediction log."""

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import NoDecode

from gateway.settings import GIB, MIB, Allowed, HeaderName, Section
from gateway.values.setting_values import ALL_MODELS, if_text, unless_none
from gateway_predictions.setting_values import log_url, percentages_of

LOG_WRITER_BYTES = 100 * MIB
"""Memory of the prediction log's writer without its rows: Python and PyArrow."""
Percentages = Annotated[dict[str, float], NoDecode, BeforeValidator(if_text(percentages_of))]


class PredictionLogSettings(Section):
    """The prediction log."""

    log_predictions: Annotated[
        str | None, Allowed("a folder, or the URL of a bucket or collector"), AfterValidator(unless_none(log_url))
    ] = None
    """Folder, bucket (s3://…) or CloudEvents collector (http://…) of the prediction log. Needs the extra log."""
    log_predictions_share: Percentages = Field({ALL_MODELS: 1.0})
    """Percentage of images whose results are logged, at random: one number, or one by model as *=1,flowers=100."""
    log_predictions_below_score: float = Field(0.0, ge=0, le=1)
    """Results whose best score is below this are always logged."""
    log_predictions_below_margin: float = Field(0.0, ge=0, le=1)
    """Results whose two best scores differ by less than this are always logged."""
    log_predictions_disagreements: bool = True
    """Whether results are always logged that a shadow version contradicts."""
    log_predictions_errors: bool = True
    """Whether images that failed are always logged."""
    log_predictions_images: bool = False
    """Whether the image files of logged results are stored."""
    log_predictions_embeddings: bool = True
    """Whether the embeddings of logged results are stored, for models that have them."""
    log_predictions_fields_header: HeaderName = "X-Log-Fields"
    """Header with fields of the client's choice for the rows of its request, such as camera=7,site=berlin."""
    log_predictions_queue_bytes: int = Field(32 * MIB, ge=MIB, le=GIB)
    """Bytes of results and images of one process that may wait to be logged; more are dropped and counted."""
    log_predictions_file_rows: int = Field(10_000, ge=1, le=1_000_000)
    """Rows after which a file of the log is written."""
    log_predictions_file_bytes: int = Field(64 * MIB, ge=MIB, le=GIB)
    """Bytes of rows and images after which a file of the log is written."""
    log_predictions_file_seconds: float = Field(60.0, ge=0.1, le=86_400)
    """Longest time until a row is written; what is not written yet is lost if the writer is killed."""
    log_predictions_keep_days: int = Field(30, ge=0, le=36_500)
    """Days after which rows and images are deleted; 0 for never."""
    log_predictions_keep_bytes: int = Field(10 * GIB, ge=0, le=1_024 * 1_024 * GIB)
    """Bytes of the log above which a day of more than four median days is thinned out, and then the oldest days are
    deleted; 0 for no limit."""

    def process_bytes(self) -> int:
        """The queue, and the writer with the rows of a file and the file that it makes of them."""
        if self.log_predictions is None:
            return 0
        return LOG_WRITER_BYTES + self.log_predictions_queue_bytes + 2 * self.log_predictions_file_bytes

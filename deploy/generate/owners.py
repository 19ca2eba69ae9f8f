"""The dashboard for owners of models."""

from deploy.generate.panels import IMAGE_FAULTS, Board, Panel, Query, Row, quantile, rate, share

_BAD = rate("gateway_images_total", f'outcome!~"ok|{IMAGE_FAULTS}"')
# Images without a result have no model.
_ANSWERED = 'model=~"$model", model!=""'
_SHADOWED = 'model=~"$model"'
_BY = "model, version"
_LEGEND = "{{model}} {{version}}"
_BIN, _PROPERTY = f"{_BY}, property, bin", f"{_BY}, property"
_CLASSES, _SCORES = ', property="class"', ', property="score"'


def _increase_of_drift(by: str, chosen: str = "") -> str:
    """Images of the last six hours: the same time as in the alert."""
    return f"sum by ({by}) (increase(gateway_drift_images_total{{$sel, {_ANSWERED}{chosen}}}[6h]))"


def _share_of_drift(chosen: str = "") -> str:
    """The share of each bin of a property."""
    return f"{_increase_of_drift(_BIN, chosen)} / on ({_PROPERTY}) group_left {_increase_of_drift(_PROPERTY, chosen)}"


def _expected_share(chosen: str = "") -> str:
    """The share of each bin in the stored reference; those that it has no more are 0, and left out."""
    return f"max by ({_BIN}) (gateway_drift_reference_share{{$sel, {_ANSWERED}{chosen}}}) > 0"


_SHARE, _EXPECTED = f"clamp_min({_share_of_drift()}, 0.001)", f"({_expected_share()})"
_PSI = f"sum by ({_PROPERTY}) (({_SHARE} - {_EXPECTED}) * ln({_SHARE} / {_EXPECTED}))"
OWNERS = Board(
    "models",
    "Image gateway: models",
    "For owners of models: the images of each version, and the scores of its answers.",
    (
        Row(
            "Versions",
            (
                Panel(
                    "Images by version",
                    "Images that each version answered.",
                    (Query(rate("gateway_images_total", _ANSWERED, _BY), _LEGEND),),
                    "ops",
                    stacked=True,
                ),
                Panel(
                    "Share of each version",
                    "Of the images of its model; with a split, compare it with the configured share.",
                    (
                        Query(
                            f"{rate('gateway_images_total', _ANSWERED, _BY)} / on (model) group_left "
                            f"{rate('gateway_images_total', _ANSWERED, 'model')}",
                            _LEGEND,
                        ),
                    ),
                    "percentunit",
                    maximum=1,
                ),
                Panel(
                    "Images in the time shown",
                    "By model and version.",
                    (
                        Query(
                            f"sum by ({_BY}) (increase(gateway_images_total{{$sel, {_ANSWERED}}}[$__range]))", _LEGEND
                        ),
                    ),
                    kind="stat",
                ),
            ),
        ),
        Row(
            "Scores",
            (
                Panel(
                    "Highest scores",
                    "Distribution of the highest score of each answer. It moves if the data or the model change.",
                    (Query(rate("gateway_top_score_bucket", _ANSWERED, "le"), "{{le}}"),),
                    kind="heatmap",
                ),
                Panel(
                    "Highest score: median and lowest tenth",
                    "By version: check a new version whose scores are much higher or lower.",
                    (
                        Query(quantile(0.5, "gateway_top_score", _ANSWERED, _BY), f"median {_LEGEND}"),
                        Query(quantile(0.1, "gateway_top_score", _ANSWERED, _BY), f"tenth {_LEGEND}"),
                    ),
                    maximum=1,
                ),
                Panel(
                    "Answers with low scores",
                    "Share of the answers whose highest score is at most 0.5.",
                    (
                        Query(
                            share(
                                rate("gateway_top_score_bucket", f'{_ANSWERED}, le="0.5"', _BY),
                                rate("gateway_top_score_count", _ANSWERED, _BY),
                            ),
                            _LEGEND,
                        ),
                    ),
                    "percentunit",
                    maximum=1,
                ),
            ),
        ),
        Row(
            "Drift",
            (
                Panel(
                    "Distance from the stored reference (PSI)",
                    "Of six hours: 0.1 is a moderate shift of the scores, entropies or classes, 0.25 a large one.",
                    (Query(_PSI, f"{{{{property}}}} {_LEGEND}", quiet=True),),
                ),
                Panel(
                    "Classes beside the reference",
                    "Share of the most frequent classes in six hours, and in the stored reference.",
                    (
                        Query(_share_of_drift(_CLASSES), f"{{{{bin}}}} {_LEGEND}", quiet=True),
                        Query(_expected_share(_CLASSES), f"{{{{bin}}}} in the reference {_LEGEND}", quiet=True),
                    ),
                    "percentunit",
                ),
                Panel(
                    "Scores beside the reference",
                    "Share of the answers by their highest score in six hours, and in the stored reference.",
                    (
                        Query(_share_of_drift(_SCORES), f"{{{{bin}}}} {_LEGEND}", quiet=True),
                        Query(_expected_share(_SCORES), f"{{{{bin}}}} in the reference {_LEGEND}", quiet=True),
                    ),
                    "percentunit",
                ),
            ),
        ),
        Row(
            "Shadow versions",
            (
                Panel(
                    "Agreement with the answers",
                    "Share of the images for which a shadow version has the same best class.",
                    (
                        Query(
                            share(
                                rate("gateway_shadow_images_total", f'{_SHADOWED}, outcome="same"', _BY),
                                rate("gateway_shadow_images_total", f'{_SHADOWED}, outcome=~"same|different"', _BY),
                            ),
                            _LEGEND,
                            quiet=True,
                        ),
                    ),
                    "percentunit",
                    maximum=1,
                ),
                Panel(
                    "Difference of scores: median and highest hundredth",
                    "Largest difference, for each image, between the scores of a shadow version and of the answer.",
                    (
                        Query(
                            quantile(0.5, "gateway_shadow_difference_score", _SHADOWED, _BY),
                            f"median {_LEGEND}",
                            quiet=True,
                        ),
                        Query(
                            quantile(0.99, "gateway_shadow_difference_score", _SHADOWED, _BY),
                            f"hundredth {_LEGEND}",
                            quiet=True,
                        ),
                    ),
                    maximum=1,
                ),
                Panel(
                    "Images for shadows, by outcome",
                    "Compared images, skipped ones (no permit was free) and failed ones; clients notice none of it.",
                    (
                        Query(
                            rate("gateway_shadow_images_total", _SHADOWED, "outcome"),
                            "{{outcome}}",
                            quiet=True,
                        ),
                    ),
                    "ops",
                    stacked=True,
                ),
            ),
        ),
        Row(
            "Bad images",
            (
                Panel(
                    "Images without an answer, by code",
                    "The codes of the errors: faults of files, or of the service.",
                    (Query(rate("gateway_images_total", 'outcome!="ok"', "outcome"), "{{outcome}}"),),
                    "ops",
                    stacked=True,
                    span=12,
                ),
                Panel(
                    "Share of bad images",
                    "Share of the images that failed because of the file.",
                    (
                        Query(
                            share(_BAD, rate("gateway_images_total")),
                            "bad",
                        ),
                    ),
                    "percentunit",
                    span=12,
                ),
            ),
        ),
    ),
    by_model=True,
)

"""The dashboard for owners of models."""

from deploy.generate.panels import IMAGE_FAULTS, Board, Panel, Query, Row, quantile, rate, share

_BAD = rate("gateway_images_total", f'outcome!~"ok|{IMAGE_FAULTS}"')
# Images without a result have no model.
_ANSWERED = 'model=~"$model", model!=""'
_SHADOWED = 'model=~"$model"'
_BY = "model, version"
_LEGEND = "{{model}} {{version}}"
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

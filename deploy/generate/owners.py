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
    "For those who make the models: who answers how much, and how sure the answers are.",
    (
        Row(
            "Who answers",
            (
                Panel(
                    "Images by version",
                    "Those that a version has answered.",
                    (Query(rate("gateway_images_total", _ANSWERED, _BY), _LEGEND),),
                    "ops",
                    stacked=True,
                ),
                Panel(
                    "Share of each version",
                    "Of its model's images: what a split asks for, and what came of it.",
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
            "How sure",
            (
                Panel(
                    "Scores",
                    "How many answers have which highest score. A band that moves: the data change, or the model does.",
                    (Query(rate("gateway_top_score_bucket", _ANSWERED, "le"), "{{le}}"),),
                    kind="heatmap",
                ),
                Panel(
                    "Highest score: median and lowest tenth",
                    "By version: a new one that is much surer or less sure deserves a look.",
                    (
                        Query(quantile(0.5, "gateway_top_score", _ANSWERED, _BY), f"median {_LEGEND}"),
                        Query(quantile(0.1, "gateway_top_score", _ANSWERED, _BY), f"tenth {_LEGEND}"),
                    ),
                    maximum=1,
                ),
                Panel(
                    "Unsure answers",
                    "Share with a highest score of at most one half.",
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
                    "Share of images of which a shadow version finds the same class likeliest.",
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
                    "Largest difference between a shadow's scores and the answer's, of each image.",
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
                    "Those compared, those skipped for want of room, and those that failed, which no client noticed.",
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
                    "What is wrong with the files, or with the service.",
                    (Query(rate("gateway_images_total", 'outcome!="ok"', "outcome"), "{{outcome}}"),),
                    "ops",
                    stacked=True,
                    span=12,
                ),
                Panel(
                    "Share of bad images",
                    "Of all that clients send, those that cannot be read.",
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

"""Grafana's JSON of the dashboards, made by Grafana's own library."""

import json

from grafana_foundation_sdk.builders import common, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.builders import dashboard as grafana
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, StackingMode, TooltipDisplayMode
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableHide, VariableOption, VariableRefresh
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from deploy.generate.operators import OPERATORS
from deploy.generate.owners import OWNERS
from deploy.generate.panels import Board, Panel, Query

BOARDS = (OPERATORS, OWNERS)
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
SELECTION = 'namespace=~"$namespace"'
"""With docker compose there are no namespaces: the value for all also matches series without one."""
HEIGHT = {"stat": 4, "timeseries": 8, "heatmap": 8}
AnyPanel = timeseries.Panel | stat.Panel | heatmap.Panel


def expression(query: Query) -> str:
    """The expression as Grafana sends it, once it has replaced its variables."""
    return query.expression.replace("$sel", SELECTION).replace("$window", "$__rate_interval")


def _target(query: Query, ref_id: str, panel: Panel) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(expression(query)).legend_format(query.legend).ref_id(ref_id)
    if panel.kind == "heatmap":
        return target.format(PromQueryFormat.HEATMAP)
    return target.instant() if panel.kind == "stat" else target.range()


def _panel(panel: Panel) -> AnyPanel:
    made: AnyPanel
    if panel.kind == "stat":
        made = stat.Panel()
    elif panel.kind == "heatmap":
        made = heatmap.Panel().calculate(calculate=False)
    else:
        made = (
            timeseries.Panel()
            .legend(
                common.VizLegendOptions()
                .display_mode(LegendDisplayMode.LIST)
                .placement(LegendPlacement.BOTTOM)
                .show_legend(show_legend=True)
            )
            .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
            .min(0)
            .line_width(1)
            .fill_opacity(30 if panel.stacked else 5)
        )
        if panel.stacked:
            made = made.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    made = made.title(panel.title).description(panel.meaning).unit(panel.unit).datasource(SOURCE)
    if panel.maximum is not None:
        made = made.max(panel.maximum)
    for number, query in enumerate(panel.queries):
        made = made.with_target(_target(query, chr(ord("A") + number), panel))
    return made.span(panel.span).height(HEIGHT[panel.kind])


def _variable(name: str, label: str, metric: str) -> grafana.QueryVariable:
    return (
        grafana.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(f"label_values({metric}, {name})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(multi=True)
        .include_all(include_all=True)
        .all_value(".*")
        .current(VariableOption(selected=True, text="All", value="$__all"))
    )


def _board(board: Board) -> grafana.Dashboard:
    made = (
        grafana.Dashboard(board.title)
        .uid(f"image-gateway-{board.name}")
        .description(board.meaning)
        .tags(["image-gateway"])
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .readonly()
        .with_variable(
            grafana.DatasourceVariable("datasource").label("Prometheus").type("prometheus").hide(VariableHide.DONT_HIDE)
        )
        .with_variable(_variable("namespace", "Namespace", "gateway_build_info"))
    )
    if board.by_model:
        made = made.with_variable(_variable("model", "Model", "gateway_images_total"))
    for row in board.rows:
        made = made.with_row(grafana.Row(row.title))
        for panel in row.panels:
            made = made.with_panel(_panel(panel))
    return made


def files() -> dict[str, str]:
    """Every dashboard's file."""
    return {
        f"{board.name}.json": json.dumps(
            json.loads(JSONEncoder(sort_keys=True).encode(_board(board).build())), indent=1
        )
        + "\n"
        for board in BOARDS
    }

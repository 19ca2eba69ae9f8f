"""The Grafana dashboards."""


def files() -> dict[str, str]:
    """Every dashboard."""
    return {}

"""Checks of the settings, and of the ports that they name."""

import http.client
import json
import socket

from gateway.environment import SettingsError, load_settings
from gateway.findings import Finding, fail, ok, warn
from gateway.plugins import settings_class
from gateway.server.serve import AddressUnusable, check_address
from gateway.settings import Settings, variable
from gateway_local.hosts import reachable

TRITON_PORTS = {"gRPC": 8001, "HTTP": 8000, "metrics": 8002}
"""The default ports of `gateway triton run`."""
TIMEOUT_SECONDS = 2.0


def settings() -> tuple[Settings, Finding]:
    """The settings and a finding about them; the defaults if the settings are invalid."""
    try:
        loaded = load_settings()
    except SettingsError as exc:
        return settings_class().model_construct(), fail("settings", str(exc), "correct the variables or .env")
    given = sorted(map(variable, loaded.model_fields_set))
    return loaded, ok("settings", f"valid: {', '.join(given)}" if given else "valid, all defaults")


def api_port(settings: Settings) -> Finding:
    """Whether the API can listen on the configured address."""
    address = f"{settings.host} port {settings.port}"
    try:
        check_address(settings)
    except AddressUnusable as exc:
        if _is_gateway(settings):
            return warn(
                "API port", f"{address} is in use by a gateway", "nothing to do if that is the one that should run"
            )
        return fail("API port", str(exc))
    return ok("API port", f"{address} is free")


def triton_ports() -> Finding:
    """Whether `gateway triton run` can listen on its ports; `gateway up` takes free ones by itself."""
    taken = [f"{name} {port}" for name, port in TRITON_PORTS.items() if not _is_free(port)]
    if taken:
        return warn(
            "Triton ports",
            f"taken on 127.0.0.1: {', '.join(taken)}",
            "gateway triton run needs --grpc-port, --http-port and --metrics-port; gateway up takes free ports itself",
        )
    return ok("Triton ports", f"{', '.join(map(str, sorted(TRITON_PORTS.values())))} are free")


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _is_gateway(settings: Settings) -> bool:
    connection = http.client.HTTPConnection(reachable(settings.host), settings.port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/health/live")
        answer = json.loads(connection.getresponse().read(1_000))
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()
    return bool(answer == {"status": "live"})

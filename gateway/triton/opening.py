"""Builds the backend from the settings."""

import secrets

from gateway.hooks import Plugins
from gateway.settings import Settings
from gateway.triton.addresses import Addresses
from gateway.triton.codec import Codecs
from gateway.triton.connect import Connect, connector
from gateway.triton.health.checker import watcher
from gateway.triton.health.state import Schedule
from gateway.triton.pool import TritonPool
from gateway.triton.replica_factory import ReplicaFactory
from gateway.triton.seal import Seal
from gateway.triton.triton_backend import BackendOptions, TritonBackend


def create_backend(settings: Settings, connect: Connect | None = None, plugins: Plugins | None = None) -> TritonBackend:
    """Create the backend for the settings; the caller starts it inside the event loop that uses it."""
    plugins = plugins or Plugins()
    pool = open_pool(settings, plugins, connect)
    return TritonBackend(pool, **options(settings, plugins))


def open_pool(
    settings: Settings, plugins: Plugins, connect: Connect | None = None, *, on_demand: bool = False
) -> TritonPool:
    """The Tritons of the settings."""
    schedule = Schedule(settings.ready_interval_seconds, settings.ready_timeout_seconds)
    factory = ReplicaFactory(
        model_name=settings.model,
        schedule=schedule,
        watch=watcher(plugins.repair()),
        splits=plugins.versions(),
        load=settings.load_models,
        on_demand=on_demand,
        codecs=Codecs.of_settings(settings),
        connect=connect or connector(settings),
    )
    return TritonPool(Addresses(settings.triton_url), factory)


def options(settings: Settings, plugins: Plugins) -> BackendOptions:
    """The options of the settings for a TritonBackend."""
    return {
        "model_name": settings.model,
        "seal": Seal(_cache_secret(settings)),
        "hold_seconds": settings.max_wait_seconds if settings.hold_without_triton else 0.0,
        "check_load": plugins.check_load,
    }


def _cache_secret(settings: Settings) -> bytes:
    """The secret for keys of Triton's response cache; random if none is set."""
    return settings.cache_secret.get_secret_value().encode() if settings.cache_secret else secrets.token_bytes(32)

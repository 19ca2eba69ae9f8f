"""Builds the backend from the settings."""

import secrets
from collections.abc import Callable

from gateway.memory import usable_memory
from gateway.server.workers import shared_file
from gateway.settings import ModelsLoaded, Settings
from gateway.triton.connect import Connect, connector
from gateway.triton.footprint import check_load
from gateway.triton.health.state import Schedule
from gateway.triton.pool import Share, TritonPool
from gateway.triton.quarantine import Notes, Quarantine
from gateway.triton.seal import Seal
from gateway.triton.triton_backend import TritonBackend


def create_backend(settings: Settings, connect: Connect | None = None) -> TritonBackend:
    """Create the backend for the settings; the caller starts it inside the event loop that uses it."""
    schedule = Schedule(
        settings.ready_interval_seconds, settings.ready_timeout_seconds, failures=settings.heal_after_failures
    )
    on_demand = settings.models_loaded is ModelsLoaded.DEMAND
    tritons = TritonPool(
        settings.triton_url,
        model_name=settings.model,
        schedule=schedule,
        heal=settings.heal,
        # With models on demand each Triton has others, so a gateway needs all of them.
        share=Share(0 if on_demand else settings.triton_aperture, settings.max_images_in_flight),
        splits=(settings.model_split, settings.model_shadow),
        load=settings.load_models,
        on_demand=on_demand,
        connect=connect or connector(settings),
    )
    seal = Seal(_cache_secret(settings))
    quarantine = Quarantine(settings.quarantine_seconds, notes=Notes(shared_file("quarantine")))
    hold_seconds = settings.max_wait_seconds if settings.hold_without_triton else 0.0
    check = _load_check(settings)
    if on_demand:
        from gateway.triton.demand.opening import open_backend  # loaded only if it is set

        return open_backend(
            settings, tritons, seal=seal, quarantine=quarantine, hold_seconds=hold_seconds, check_load=check
        )
    return TritonBackend(
        tritons,
        model_name=settings.model,
        seal=seal,
        quarantine=quarantine,
        hold_seconds=hold_seconds,
        check_load=check,
    )


def _load_check(settings: Settings) -> Callable[[str], str | None] | None:
    """The check of a model to load against this machine's memory; None if Triton runs on another machine."""
    repository = settings.model_repository
    if repository is None:
        return None
    return lambda name: check_load(name, repository, settings.memory_check, usable_memory())


def _cache_secret(settings: Settings) -> bytes:
    """The secret for keys of Triton's response cache; random if none is set."""
    return settings.cache_secret.get_secret_value().encode() if settings.cache_secret else secrets.token_bytes(32)

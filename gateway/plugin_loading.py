"""Finds the installed plug-ins, and combines their settings with the core's."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

from gateway import errors
from gateway.errors import GatewayError
from gateway.hooks import GROUP, Plugin, PluginFailed, Plugins, hooks_of, naming
from gateway.settings import ENV_PREFIX, FIXED_VALUES, Settings, fixed, given_variables, variable
from gateway.values.setting_values import listed


@cache
def installed() -> tuple[type[Plugin], ...]:
    """The plug-ins that the entry points of installed distributions name; raises PluginFailed.

    Plug-ins of other distributions come first: where the first plug-in's is used, theirs replaces ours. Plug-ins that
    the variable of `plugins_off` names are not loaded.
    """
    off = _off()
    entries = {entry.name: entry for entry in _entries()}
    if unknown := off - entries.keys():
        known = ", ".join(sorted(entries))
        raise PluginFailed(f"{variable('plugins_off')} names {min(unknown)!r}; installed are {known}")
    return tuple(_load(entry) for name, entry in entries.items() if name not in off)


def combined(plugins: Iterable[type[Plugin]]) -> type[Settings]:
    """A class with the settings of the core and of some plug-ins; raises PluginFailed if two have one of a name."""
    owners = dict.fromkeys(Settings.model_fields, "the gateway")
    sections = []
    for plugin in plugins:
        if (section := plugin.settings) is not None:
            sections.append(section)
            if twice := owners.keys() & section.model_fields.keys():
                name = min(twice)
                raise PluginFailed(
                    f"the plug-in {plugin.name!r} has the setting {name}, as {owners[name]} has: uninstall one of them"
                )
            owners |= dict.fromkeys(section.model_fields, f"the plug-in {plugin.name!r}")
    # The fields of a class with several bases are in the order of the last base to the first.
    bases: tuple[type, ...] = (*reversed(sections), Settings)
    return type("Settings", bases, {"__doc__": Settings.__doc__, "__module__": Settings.__module__})


@cache
def settings_class() -> type[Settings]:
    """The class of all settings: of the core and of the installed plug-ins."""
    return combined(installed())


def environment_of(values: Mapping[str, object]) -> dict[str, str]:
    """The variables that pass values of settings to another process of the gateway, fixed ones included."""
    fields = settings_class().model_fields
    fixed_values = {name: value for name, value in values.items() if name in fields and fixed(fields[name])}
    variables = {variable(name): str(value) for name, value in values.items() if name not in fixed_values}
    if fixed_values:
        variables[FIXED_VALUES] = json.dumps({**json.loads(os.environ.get(FIXED_VALUES, "{}")), **fixed_values})
    return variables


def metrics_of(plugins: Iterable[type[Plugin]]) -> Sequence[ModuleType]:
    """The modules of metrics of some plug-ins; their series exist once they are loaded. Raises PluginFailed."""
    return _modules(plugins, "metrics")


def errors_of(plugins: Iterable[type[Plugin]]) -> Sequence[type[GatewayError]]:
    """The errors with a code: of the core, then of some plug-ins; raises PluginFailed."""
    return [
        kind
        for module in (errors, *_modules(plugins, "errors"))
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, GatewayError) and kind.__module__ == module.__name__
        if "code" in vars(kind) and kind is not GatewayError
    ]


def check_used(settings: Settings, plugins: Iterable[type[Plugin]]) -> None:
    """Raise PluginFailed if a setting is set whose plug-in is not among `plugins`, in `settings` or as a variable.

    Without its plug-in, a file of keys would leave the service open. Settings that were made without the plug-in
    ignore its variable, in the environment and in the file .env.
    """
    used = {name for plugin in plugins if plugin.settings is not None for name in plugin.settings.model_fields}
    used |= Settings.model_fields.keys()
    unused = settings.model_fields_set - used
    variables = {name.upper() for name in given_variables()}
    if any(name.startswith(ENV_PREFIX) for name in variables - set(map(variable, used))):
        # Only now, since this loads the plug-ins.
        unused |= {name for name in _installed_fields() - used if variable(name) in variables}
    if unused:
        raise PluginFailed(f"{variable(min(unused))} is set, but the application does not have its plug-in")


def used(settings: Settings, plugins: Sequence[type[Plugin]] | None = None) -> Sequence[type[Plugin]]:
    """The plug-ins, by default all that are installed, without those that the settings switch off."""
    return [kind for kind in (installed() if plugins is None else plugins) if kind.name not in settings.plugins_off]


def hooks(settings: Settings) -> Plugins:
    """The hooks of the classes of the plug-ins that are used."""
    return Plugins(used(settings))


def opened(settings: Settings, plugins: Iterable[type[Plugin]]) -> Plugins:
    """The plug-ins of one application; raises UserError."""
    created: list[Plugin] = []
    for plugin in plugins:
        with naming(plugin.name):
            created.append(plugin(settings))
    return Plugins(created)


def _modules(plugins: Iterable[type[Plugin]], attribute: str) -> Sequence[ModuleType]:
    """The modules that an attribute of some plug-ins names; raises PluginFailed."""
    modules = []
    for plugin in plugins:
        if (name := getattr(plugin, attribute)) is not None:
            with naming(plugin.name, f" to load {name}"):
                modules.append(import_module(name))
    return modules


def needs_key(settings: Settings) -> bool:
    """Whether POST /predict needs a key with the installed plug-ins; raises UserError for a file of keys."""
    checking = [plugin for plugin in used(settings) if "authenticators" in hooks_of(plugin)]
    authenticators = opened(settings, checking).authenticators()
    return not all(each.admin_only for each in authenticators)


@dataclass(frozen=True, slots=True)
class Listing:
    """An installed plug-in, as `gateway plugins` shows it."""

    name: str
    version: str
    state: str
    """on, off, or the reason why it cannot be loaded."""
    hooks: Sequence[str] = ()
    settings: Sequence[str] = ()
    """The variables of its settings."""


def listings() -> Sequence[Listing]:
    """All installed plug-ins, also if they are switched off or cannot be loaded."""
    off = _off()
    found = []
    for entry in _entries():
        version = entry.dist.version if entry.dist is not None else ""
        if entry.name in off:
            found.append(Listing(entry.name, version, "off"))
            continue
        try:
            plugin = _load(entry)
        except PluginFailed as exc:
            found.append(Listing(entry.name, version, str(exc)))
            continue
        section = plugin.settings
        settings = [] if section is None else [variable(field) for field in section.variables()]
        found.append(Listing(entry.name, version, "on", hooks_of(plugin), settings))
    return found


def _installed_fields() -> set[str]:
    """The settings of the installed plug-ins that can be loaded; a broken one may be left out on purpose."""
    fields: set[str] = set()
    for entry in _entries():
        with suppress(PluginFailed):
            if (section := _load(entry).settings) is not None:
                fields |= section.model_fields.keys()
    return fields


def _entries() -> Sequence[EntryPoint]:
    """The entry points of plug-ins; other distributions come before the gateway."""
    return sorted(entry_points(group=GROUP), key=lambda entry: (is_ours(entry.value), entry.name))


def _off() -> set[str]:
    """The names of the plug-ins that are switched off."""
    return set(listed(given_variables().get(variable("plugins_off")) or ""))


def is_ours(module: str) -> bool:
    """Whether a plug-in's module comes with the gateway."""
    return module.startswith(("gateway_models.", "gateway.plugins."))


def _load(entry: EntryPoint) -> type[Plugin]:
    try:
        plugin = entry.load()
    except Exception as error:  # of any kind: a plug-in that cannot be loaded may be left out, and is listed
        raise PluginFailed.of(entry.name, error, " to load") from error
    if not (isinstance(plugin, type) and issubclass(plugin, Plugin)):
        raise PluginFailed(f"{entry!r} does not name a subclass of gateway.hooks.Plugin")
    plugin.name = entry.name
    return plugin

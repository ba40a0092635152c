"""Builds the conda package from a recipe, with the library of rattler-build, or installs it with the library of rattler.

usage: conda_test.py build RECIPE CHANNEL      CHANNEL: a folder for the package
       conda_test.py install CHANNEL PREFIX    PREFIX: the folder of the environment

No other channel is used. The recipe's tests run too. Environment: what the recipe needs. A process that has loaded both
libraries sometimes crashes at its end.
"""
import asyncio
import pathlib
import sys


def build(recipe, channel):
    import rattler_build

    results = rattler_build.Stage0Recipe.from_file(recipe).run_build(
        tool_config=rattler_build.ToolConfiguration(test_strategy="native"), output_dir=channel, channels=[])
    print(*(package for result in results for package in result.packages), sep="\n")


def install(channel, prefix):
    import rattler

    async def solve_and_install():
        channels = [rattler.Channel(channel.as_uri())]
        packages = await rattler.solve(channels, ["hbmprof"], virtual_packages=rattler.VirtualPackage.detect())
        await rattler.install(packages, target_prefix=prefix)

    asyncio.run(solve_and_install())


{"build": build, "install": install}[sys.argv[1]](*(pathlib.Path(argument).resolve() for argument in sys.argv[2:]))

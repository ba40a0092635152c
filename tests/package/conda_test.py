"""Builds the conda package from a recipe, with the library of rattler-build, and installs it with the library of rattler.

usage: conda_test.py RECIPE CHANNEL PREFIX     CHANNEL: a folder for the package; PREFIX: the folder of the environment

No other channel is used. The recipe's tests run too. Environment: what the recipe needs.
"""
import asyncio
import pathlib
import sys

import rattler
import rattler_build


async def install(channel, prefix):
    channels = [rattler.Channel(channel.as_uri())]
    packages = await rattler.solve(channels, ["hbmprof"], virtual_packages=rattler.VirtualPackage.detect())
    await rattler.install(packages, target_prefix=prefix)


def main():
    recipe, channel, prefix = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
    results = rattler_build.Stage0Recipe.from_file(recipe).run_build(
        tool_config=rattler_build.ToolConfiguration(test_strategy="native"), output_dir=channel, channels=[])
    print(*(package for result in results for package in result.packages), sep="\n")
    asyncio.run(install(channel, prefix))


main()

"""The input and output of upstream's debugger console."""

from __future__ import annotations

import asyncio
import sys
from abc import ABC, abstractmethod


class DebugIO(ABC):
    """The console's connection to a person."""

    @abstractmethod
    async def input(self, prompt: str = "") -> str:
        """Return a typed line, without its end."""

    @abstractmethod
    async def output(self, msg: str) -> None:
        """Show a text as it is."""

    @abstractmethod
    async def quit(self) -> None:
        """End the connection when the person leaves."""


class DebugStdIO(DebugIO):
    """This program's own terminal."""

    async def input(self, prompt: str = "") -> str:
        return await asyncio.to_thread(input, prompt)

    async def output(self, msg: str) -> None:
        sys.stdout.write(msg)
        sys.stdout.flush()

    async def quit(self) -> None:
        """Do nothing: the terminal stays open."""


class DebugIOError(RuntimeError):
    """The console is gone."""

    def __init__(self) -> None:
        super().__init__("Error encountered during debugger I/O operation.")


class DebugCliIO(DebugIO):
    """A console over a connection, as from netcat."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def input(self, prompt: str = "") -> str:
        if prompt:
            await self.output(prompt)
        try:
            line = await self._reader.readline()
        except (ConnectionError, ValueError) as error:
            raise DebugIOError from error
        if not line:
            raise DebugIOError
        return line.decode(errors="replace").rstrip("\r\n")

    async def output(self, msg: str) -> None:
        try:
            self._writer.write(msg.encode())
            await self._writer.drain()
        except ConnectionError as error:
            raise DebugIOError from error

    async def quit(self) -> None:
        self._writer.close()

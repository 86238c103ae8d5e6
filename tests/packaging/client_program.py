"""A program with the client alone, in a Python of its own: every part of it, for Python 3.9."""

import asyncio
import platform
import sys
import time
from concurrent.futures import as_completed

from carma_client import AsyncClient, Client, Executor, JobFailed, Refused


async def main() -> str:
    client = AsyncClient()
    label = await client.submit(["sh", "-c", "echo hello; exit 3"], gpus=0, held=True)
    events = client.events(label)
    first = await events.__anext__()
    await client.release(label)
    async for event in events:
        last = event
    job = await client.wait(label)
    lines = [line async for line in client.logs(label)]
    return f"{first['event']} {last['job']['state']} {job['code']} {lines}"


client = Client()
label = client.submit([sys.executable, "-c", "print('one')"], gpus=0, name="old")
print(client.wait(label)["state"], list(client.logs(label, follow=True)))
try:
    client.submit(["true"], gpus=99)
except Refused as refused:
    print(refused.code)
with Executor(2, gpus=0) as executor:
    print(list(executor.map(pow, [2, 3], [10, 2])))
    done = as_completed([executor.submit(divmod, 7, 2), executor.submit(time.strftime, "%%")])
    print(sorted(str(future.result()) for future in done))
    print(executor.submit(platform.python_version).result() == platform.python_version())
    print(executor.submit("one".__add__, "two").result())
    try:
        executor.submit(divmod, 1, 0).result()
    except ZeroDivisionError as error:
        print("In CARMA's job" in str(error.__cause__))
    failed = executor.submit(sys.exit, 3)
    try:
        failed.result()
    except JobFailed as problem:
        print(problem.job["state"])
print(asyncio.run(main()))

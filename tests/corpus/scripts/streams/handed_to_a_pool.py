"""Other threads read copies of outputs, or the script waits for them before the next replay."""

import queue
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import torch

x = torch.zeros(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2


def total(tensor):
    return tensor.sum().item()


def total_then(tensor, done):
    result = tensor.sum().item()
    done.release()
    return result


with ThreadPoolExecutor(2) as pool:
    jobs, done = [], threading.Semaphore(0)
    for number in range(3):
        x.fill_(number)
        graph.replay()
        jobs.append(pool.submit(total, y.clone()))
        print(pool.submit(total, y).result())
        wait([pool.submit(total, y)])
        pool.submit(total_then, y, done)
        done.acquire()
        print(list(pool.map(total, [y, y])))
    print([job.result() for job in jobs])


def write():
    while (item := outputs.get()) is not None:
        written.append(item[1].sum().item())
        outputs.task_done()


outputs, written = queue.Queue(), []
writer = threading.Thread(target=write)
writer.start()
for number in range(3):
    x.fill_(number)
    graph.replay()
    outputs.put((number, y.clone()))
    outputs.put((number, y))
    outputs.join()
outputs.put(None)
writer.join()
print(written)

# Slots of static memory, which each user gives back.
slots = queue.Queue()
slots.put((graph, x, y))
for number in range(3):
    own, static, result = slots.get()
    static.fill_(number)
    own.replay()
    print(result.sum().item())
    slots.put((own, static, result))

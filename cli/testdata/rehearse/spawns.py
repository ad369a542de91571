import torch.multiprocessing as mp


def worker(rank):
    print("rank", rank)


if __name__ == "__main__":
    mp.spawn(worker, nprocs=4)

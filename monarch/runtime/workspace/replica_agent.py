"""x"""


class ReplicaAgent:
    def __init__(self, agent, root):
        pass

    def close(self):
        pass

"""The parts of `rl`: they generate samples, judge and buffer them, and learn from them.

problems            the task: problems, prompt, demonstrations, reward
policy, sampling    the model; its completions, with a KV cache
generator, judging  the actors that generate and judge samples
vllm_engine         lets a generator sample with vLLM
crew                actors that are replaced one by one when they die
groups              samples of one problem, and their tensors for a step
replay              the buffer of groups between judging and training
pipeline            drives all of these from the client, batch by batch
imitation           demonstrations for the supervised phase
grpo, learner       advantages and loss; one rank of the training
recorder            writes samples to a file
"""

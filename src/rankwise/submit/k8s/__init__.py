"""A training on Kubernetes: an Indexed Job with a headless Service, or a JobSet, or Kubeflow's TrainJob."""

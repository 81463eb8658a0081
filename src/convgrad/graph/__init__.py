"""Graphs of convolution gradients, with the names of oneDNN's graph programming model.

Tensors are described by `LogicalTensor`s, whose ids join the operations of a `Graph`. A finalized graph is cut into
partitions, which are compiled for tensors of known shape and run on arrays:

    graph = load("graph.json")
    compiled = graph.compile()
    results = compiled.execute({port.id: array for port, array in zip(graph.get_input_ports(), arrays)})
"""

from convgrad.graph.compiled import CompiledGraph, CompiledPartition
from convgrad.graph.graph import Graph
from convgrad.graph.memory import empty
from convgrad.graph.operations import Op
from convgrad.graph.partition import Partition
from convgrad.graph.reader import load, loads
from convgrad.graph.tensors import LogicalTensor
from convgrad.graph.writer import dumps, save

__all__ = [
    "CompiledGraph",
    "CompiledPartition",
    "Graph",
    "LogicalTensor",
    "Op",
    "Partition",
    "dumps",
    "empty",
    "load",
    "loads",
    "save",
]

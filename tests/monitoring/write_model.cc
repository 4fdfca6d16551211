// Writes the model that the tests of this folder serve: weights at random, so small that a loaded
// server costs little, but with a KV cache as large as that of a model a hundred times its size, so
// that a page of text fills tiers and a record has several units.

#include <iostream>

#include "tests/testing/tiny_model.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: strata_write_model PATH\n";
    return 2;
  }
  strata::TinyModelOptions options;
  options.layers = 32;
  options.query_heads = 3;
  options.kv_heads = 3;
  options.head_dim = 64;
  strata::WriteTinyModel(options, argv[1]);
  return 0;
}

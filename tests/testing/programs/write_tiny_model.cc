// write_tiny_model FILE: the model of tiny_model.h, for tests that start programs.

#include <cstdio>

#include "tests/testing/tiny_model.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: write_tiny_model FILE\n");
    return 2;
  }
  strata::WriteTinyModel({}, argv[1]);
  return 0;
}

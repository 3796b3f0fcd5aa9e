// What the programs that measure a cost have in common.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include <cuda_runtime.h>

#include "ending.h"

namespace cost {

inline size_t free_bytes() {
    size_t available = 0, total = 0;
    ending::require("cudaMemGetInfo", cudaMemGetInfo(&available, &total));
    return available;
}

inline double median(std::vector<double>& values) {
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
}

}  // namespace cost

// A kernel with invalid machine code: compiled by the driver, overwritten in the ELF file, then loaded.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <cuda.h>
#include <elf.h>

#include "ending.h"

namespace faults::illegal {

using ending::require;

constexpr const char* kSection = ".text.illegal";
constexpr size_t kInstruction = 16;  // bytes, from compute capability 7.0 on

constexpr std::uint64_t kNothing = 0xffffffffffff7fff;  // opcode 0xfff, under the predicate that is always true

// PTX knows no illegal instruction, so one is made from a kernel that does nothing.
inline std::vector<unsigned char> compiled(const char* target) {
    std::string text = ".version 7.8\n.target ";
    text += target;
    text += "\n.address_size 64\n.visible .entry illegal() { ret; }\n";
    CUlinkState linker = nullptr;
    require("cuLinkCreate", cuLinkCreate(0, nullptr, nullptr, &linker));
    require("cuLinkAddData", cuLinkAddData(linker, CU_JIT_INPUT_PTX, text.data(), text.size() + 1, "illegal", 0, nullptr,
                                           nullptr));
    void* image = nullptr;
    size_t size = 0;
    require("cuLinkComplete", cuLinkComplete(linker, &image, &size));
    const auto* begin = static_cast<unsigned char*>(image);
    std::vector<unsigned char> copy(begin, begin + size);
    require("cuLinkDestroy", cuLinkDestroy(linker));
    return copy;
}

template <typename T>
T at(const std::vector<unsigned char>& image, size_t offset) {
    T value;
    if (offset + sizeof(T) > image.size()) ending::failed("ELF image cut short", 0, nullptr);
    std::memcpy(&value, image.data() + offset, sizeof(T));
    return value;
}

// Every instruction's lower half, opcode and operands, is replaced; the upper keeps its scheduling bits.
inline void overwrite(std::vector<unsigned char>& image) {
    const auto header = at<Elf64_Ehdr>(image, 0);
    const auto names = at<Elf64_Shdr>(image, header.e_shoff + size_t{header.e_shstrndx} * header.e_shentsize);
    for (size_t index = 0; index < header.e_shnum; ++index) {
        const auto section = at<Elf64_Shdr>(image, header.e_shoff + index * header.e_shentsize);
        const size_t name = names.sh_offset + section.sh_name;
        if (name >= image.size() || std::string_view(reinterpret_cast<const char*>(image.data() + name)) != kSection) {
            continue;
        }
        if (section.sh_offset + section.sh_size > image.size()) ending::failed("ELF section cut short", 0, nullptr);
        for (size_t offset = 0; offset + kInstruction <= section.sh_size; offset += kInstruction) {
            std::memcpy(image.data() + section.sh_offset + offset, &kNothing, sizeof(kNothing));
        }
        return;
    }
    ending::failed("no machine code in the compiled kernel", 0, nullptr);
}

inline CUfunction kernel() {
    int major = 0;
    require("cuDeviceGetAttribute", cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
    std::vector<unsigned char> image = compiled(major >= 9 ? "sm_90" : "sm_75");  // PTX goes up to any later GPU
    overwrite(image);
    CUmodule loaded = nullptr;
    require("cuModuleLoadData", cuModuleLoadData(&loaded, image.data()));
    CUfunction function = nullptr;
    require("cuModuleGetFunction", cuModuleGetFunction(&function, loaded, "illegal"));
    return function;
}

}  // namespace faults::illegal

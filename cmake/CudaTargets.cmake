# Enables the CUDA language with an nvcc that fits torch, and defines imported targets for the CUDA
# libraries that libtorch_cuda itself loads: convtime::cudart, convtime::cublasLt, convtime::cudnn,
# convtime::cupti, convtime::cudnn_frontend.

if(NOT CONVTIME_NVCC)
  message(FATAL_ERROR
    "no nvcc of torch's CUDA major version (torch has CUDA ${CONVTIME_TORCH_CUDA_VERSION}) was found: install "
    "that CUDA toolkit and set CUDA_HOME, or from CUDA 13 on pip install "
    "'cuda-toolkit[nvcc,crt,nvvm,cccl,cudart]==${CONVTIME_TORCH_CUDA_VERSION}.*', "
    "or build without CUDA (-DCONVTIME_CUDA=OFF).")
endif()
foreach(required
    LIBCUDART_PATH LIBCUBLASLT_PATH LIBCUDNN_PATH LIBCUPTI_PATH CUDNN_INCLUDE_DIR CUDNN_FRONTEND_INCLUDE_DIR)
  if(NOT CONVTIME_${required})
    message(FATAL_ERROR
      "${required} was not found for ${CONVTIME_TORCH_DIR}: reinstall torch with its nvidia packages, "
      "and pip install 'nvidia-cudnn-frontend>=1.24,<1.27' where build isolation is off.")
  endif()
endforeach()

# nvcc looks for its libraries in lib64, but the toolkit from PyPI has them in lib. Only CMake's check of the
# compiler links with nvcc; convtime's libraries are linked by their full paths.
cmake_path(GET CONVTIME_NVCC PARENT_PATH toolkit)
cmake_path(GET toolkit PARENT_PATH toolkit)
if(NOT EXISTS ${toolkit}/lib64)
  set(ENV{LIBRARY_PATH} "${toolkit}/lib:$ENV{LIBRARY_PATH}")
endif()

if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES ${CONVTIME_CUDA_ARCHITECTURES})
endif()
if(NOT DEFINED CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER ${CONVTIME_NVCC})
endif()
# The runtime is torch's own libcudart: a second, static copy would have streams and errors of its own.
set(CMAKE_CUDA_RUNTIME_LIBRARY None)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
enable_language(CUDA)

# One order of headers for all: torch's cuDNN before the toolkit, which may hold another; then nvcc's own,
# which belong together; then those of torch's wheels, for what a small toolkit lacks (cuBLAS, cuSPARSE …).
cmake_path(GET CONVTIME_LIBCUDART_PATH PARENT_PATH wheel)
cmake_path(GET wheel PARENT_PATH wheel)
foreach(name cudart cublasLt cudnn cupti)
  string(TOUPPER CONVTIME_LIB${name}_PATH path)
  add_library(convtime::${name} SHARED IMPORTED)
  set_target_properties(convtime::${name} PROPERTIES IMPORTED_LOCATION ${${path}})
  target_include_directories(convtime::${name} SYSTEM INTERFACE
    ${CONVTIME_CUDNN_INCLUDE_DIR} ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} ${wheel}/include)
endforeach()

add_library(convtime::cudnn_frontend INTERFACE IMPORTED)
target_include_directories(convtime::cudnn_frontend SYSTEM INTERFACE ${CONVTIME_CUDNN_FRONTEND_INCLUDE_DIR})
target_compile_definitions(convtime::cudnn_frontend INTERFACE NV_CUDNN_FRONTEND_DISABLE_LOGGING)

# The version that a header #defines as <prefix>MAJOR<suffix>, <prefix>MINOR<suffix>, <prefix><patch><suffix>.
function(convtime_header_version header prefix suffix patch result)
  file(READ ${header} text)
  foreach(part MAJOR MINOR ${patch})
    string(REGEX MATCH "#define ${prefix}${part}${suffix} +([0-9]+)" matched "${text}")
    list(APPEND parts ${CMAKE_MATCH_1})
  endforeach()
  list(JOIN parts . version)
  set(${result} ${version} PARENT_SCOPE)
endfunction()
convtime_header_version(${CONVTIME_CUDNN_INCLUDE_DIR}/cudnn_version.h
  CUDNN_ "" PATCHLEVEL CONVTIME_CUDNN_VERSION)
convtime_header_version(${CONVTIME_CUDNN_FRONTEND_INCLUDE_DIR}/cudnn_frontend_version.h
  CUDNN_FRONTEND_ _VERSION PATCH CONVTIME_CUDNN_FRONTEND_VERSION)

# The compiler must see that cuDNN's headers too, and not another's of the same name.
include(CheckCXXSourceCompiles)
string(REPLACE "." ";" cudnn_version ${CONVTIME_CUDNN_VERSION})
list(GET cudnn_version 0 major)
list(GET cudnn_version 1 minor)
set(CMAKE_REQUIRED_LIBRARIES convtime::cudnn)
check_cxx_source_compiles("
  #include <cudnn.h>
  static_assert(CUDNN_MAJOR == ${major} && CUDNN_MINOR == ${minor});
  int main() { return cudnnGetVersion() == 0; }" CONVTIME_CUDNN_HEADER_IS_TORCHS)
if(NOT CONVTIME_CUDNN_HEADER_IS_TORCHS)
  message(FATAL_ERROR
    "the compiler does not find the cuDNN ${CONVTIME_CUDNN_VERSION} of ${CONVTIME_CUDNN_INCLUDE_DIR}, which torch "
    "loads: remove other cuDNN folders from CPATH, CPLUS_INCLUDE_PATH and CXXFLAGS.")
endif()
unset(CMAKE_REQUIRED_LIBRARIES)

message(STATUS "convtime: nvcc ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}, "
  "cuDNN ${CONVTIME_CUDNN_VERSION}, cuDNN frontend ${CONVTIME_CUDNN_FRONTEND_VERSION}")

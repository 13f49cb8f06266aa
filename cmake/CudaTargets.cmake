# Defines imported targets for the CUDA libraries that libtorch_cuda itself loads: convtime::cudart,
# convtime::cublasLt, convtime::cudnn, convtime::cupti; and for headers alone: convtime::nvrtc_headers,
# convtime::cudnn_frontend.

foreach(required
    LIBCUDART_PATH LIBCUBLASLT_PATH LIBCUDNN_PATH LIBCUPTI_PATH LIBNVRTC_PATH CUDA_INCLUDE_DIRS
    CUDNN_INCLUDE_DIR CUDNN_FRONTEND_INCLUDE_DIR)
  if(NOT CONVTIME_${required})
    message(FATAL_ERROR
      "${required} was not found for ${CONVTIME_TORCH_DIR}: reinstall torch with its nvidia packages, "
      "and pip install 'nvidia-cudnn-frontend>=1.24,<1.27' where build isolation is off.")
  endif()
endforeach()

convtime_link(${CONVTIME_CUDNN_INCLUDE_DIR} cudnn cuda_headers) # first: other folders may hold another
foreach(folder IN LISTS CONVTIME_CUDA_INCLUDE_DIRS)
  list(LENGTH cuda_headers place)
  convtime_link(${folder} cuda${place} link)
  list(APPEND cuda_headers ${link})
endforeach()
foreach(name cudart cublasLt cudnn cupti)
  string(TOUPPER CONVTIME_LIB${name}_PATH path)
  add_library(convtime::${name} SHARED IMPORTED)
  set_target_properties(convtime::${name} PROPERTIES IMPORTED_LOCATION ${${path}})
  target_include_directories(convtime::${name} SYSTEM INTERFACE ${cuda_headers})
endforeach()
add_library(convtime::nvrtc_headers INTERFACE IMPORTED) # the library is opened at run time
target_include_directories(convtime::nvrtc_headers SYSTEM INTERFACE ${cuda_headers})

convtime_link(${CONVTIME_CUDNN_FRONTEND_INCLUDE_DIR} cudnn_frontend cudnn_frontend_headers)
add_library(convtime::cudnn_frontend INTERFACE IMPORTED)
target_include_directories(convtime::cudnn_frontend SYSTEM INTERFACE ${cudnn_frontend_headers})
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

# The compiler must see these headers, and not others of the same names.
include(CheckCXXSourceCompiles)
function(convtime_check_header header folder condition)
  unset(found CACHE) # CPATH is another in another run
  check_cxx_source_compiles("
    #include <${header}>
    static_assert(${condition});
    int main() {}" found)
  if(NOT found)
    message(FATAL_ERROR
      "the compiler does not find the ${header} of ${folder}, whose library torch loads: "
      "remove other folders with a ${header} from CPATH, CPLUS_INCLUDE_PATH and CXXFLAGS.")
  endif()
endfunction()
set(CMAKE_REQUIRED_LIBRARIES convtime::cudnn)
set(CMAKE_REQUIRED_QUIET ON)
find_path(runtime_folder cuda_runtime_api.h PATHS ${CONVTIME_CUDA_INCLUDE_DIRS} NO_DEFAULT_PATH NO_CACHE REQUIRED)
file(STRINGS ${runtime_folder}/cuda_runtime_api.h runtime_version REGEX "#define CUDART_VERSION +[0-9]+")
string(REGEX MATCH "[0-9]+" runtime_version "${runtime_version}")
convtime_check_header(cuda_runtime_api.h ${runtime_folder} "CUDART_VERSION == ${runtime_version}")
string(REPLACE "." ";" cudnn_version ${CONVTIME_CUDNN_VERSION})
list(GET cudnn_version 0 major)
list(GET cudnn_version 1 minor)
convtime_check_header(cudnn.h ${CONVTIME_CUDNN_INCLUDE_DIR} "CUDNN_MAJOR == ${major} && CUDNN_MINOR == ${minor}")
unset(CMAKE_REQUIRED_LIBRARIES)
unset(CMAKE_REQUIRED_QUIET)

message(STATUS "convtime: cuDNN ${CONVTIME_CUDNN_VERSION}, cuDNN frontend ${CONVTIME_CUDNN_FRONTEND_VERSION}")

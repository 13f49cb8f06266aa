# Imported targets for an installed torch, used by convtime's own build and by its installed package:
#   convtime_add_torch(<site-packages/torch> <with CUDA>)  ->  convtime::torch
#
# torch's own CMake package is not used: with CUDA it pulls in FindCUDA, which wants a whole system toolkit.

function(convtime_add_torch torch_dir with_cuda)
  if(TARGET convtime::torch)
    return()
  endif()
  set(names c10 torch_cpu torch)
  if(with_cuda)
    list(APPEND names c10_cuda torch_cuda)
  endif()

  add_library(convtime::torch INTERFACE IMPORTED)
  target_include_directories(convtime::torch SYSTEM INTERFACE
    ${torch_dir}/include
    ${torch_dir}/include/torch/csrc/api/include)
  target_compile_features(convtime::torch INTERFACE cxx_std_20)
  foreach(name IN LISTS names)
    set(library ${torch_dir}/lib/lib${name}.so)
    if(NOT EXISTS ${library})
      message(FATAL_ERROR "${library} does not exist: reinstall torch.")
    endif()
    add_library(convtime::torch_${name} SHARED IMPORTED)
    set_target_properties(convtime::torch_${name} PROPERTIES IMPORTED_LOCATION ${library})
    target_link_libraries(convtime::torch INTERFACE convtime::torch_${name})
  endforeach()
  # libtorch_cuda registers its kernels when loaded, and no symbol of it need be used for that.
  target_link_options(convtime::torch INTERFACE LINKER:--no-as-needed)
endfunction()

"""Writes frameworks/: small classifiers of scikit-learn's digits, each by its own framework.

KERAS_BACKEND=torch python -m tests.gateway_models.networks.framework_files

It needs keras, skops and scikit-learn. The images are gray, 8×8, with values of 0 to 255. answers.json has
the probabilities that each framework gives the first images.
"""

import json
from pathlib import Path

import numpy as np

FILES = Path(__file__).with_name("frameworks")
IMAGES = 16
"""Images whose answers are in answers.json."""


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [1797, 8, 8, 1] and their digits."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return np.round(found.images * 255 / 16).astype(np.uint8)[..., None], found.target


def write_sklearn(images: np.ndarray, numbers: np.ndarray) -> dict[str, np.ndarray]:
    import joblib
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from skops import io

    names = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
    rows = images.reshape(len(images), -1).astype(np.float32)
    pipeline = make_pipeline(StandardScaler(), PCA(20), LogisticRegression(max_iter=500)).fit(rows, names[numbers])
    joblib.dump(pipeline, FILES / "digits.joblib")
    io.dump(pipeline, FILES / "digits.skops")
    answers = pipeline.predict_proba(rows[:IMAGES])
    return {"digits.joblib": answers, "digits.skops": answers}


def write_keras(images: np.ndarray, numbers: np.ndarray) -> dict[str, np.ndarray]:
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Rescaling(1 / 255),
            layers.RandomTranslation(0.05, 0.05),
            layers.Conv2D(8, 3, padding="same", activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.Dropout(0.1),
            layers.Flatten(),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.Adam(5e-3), "sparse_categorical_crossentropy")
    model.fit(images, numbers, epochs=30, verbose=0)
    model.save(FILES / "digits.keras")
    model.save(FILES / "digits.h5")
    code = keras.Sequential([keras.Input((8, 8, 1)), layers.Lambda(lambda x: x / 255), *model.layers[1:]])
    code.save(FILES / "lambda.keras")
    answers = model.predict(images[:IMAGES], verbose=0)
    return dict.fromkeys(("digits.keras", "digits.h5", "lambda.keras"), answers)


def main() -> None:
    FILES.mkdir(exist_ok=True)
    images, numbers = digits()
    answers = write_sklearn(images, numbers) | write_keras(images, numbers)
    text = json.dumps({name: np.round(rows, 6).tolist() for name, rows in answers.items()})
    (FILES / "answers.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
